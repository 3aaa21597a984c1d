"""An RTSP server: ``python rtsp_server.py CODEC RATE WIDTH HEIGHT PORT`` writes its port; 0 chooses a free one."""

from __future__ import annotations

import sys

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer  # noqa: E402

ENCODERS = {
    "h264": "x264enc tune=zerolatency threads=1 key-int-max=10 ! rtph264pay name=pay0 config-interval=-1",
    "mjpeg": "jpegenc ! rtpjpegpay name=pay0",
}


def main(codec: str, rate: str, width: str, height: str, port: str) -> None:
    Gst.init(None)
    factory = GstRtspServer.RTSPMediaFactory()
    factory.set_launch(
        f"( videotestsrc is-live=true pattern=ball"
        f" ! video/x-raw,format=I420,width={width},height={height},framerate={rate}/1 ! {ENCODERS[codec]} )"
    )
    factory.set_shared(True)
    server = GstRtspServer.RTSPServer()
    server.set_address("127.0.0.1")
    server.set_service(port)
    server.get_mount_points().add_factory("/test", factory)
    server.attach(None)
    sys.stdout.write(f"{server.get_bound_port()}\n")
    sys.stdout.flush()
    GLib.MainLoop().run()


if __name__ == "__main__":
    main(*sys.argv[1:])
