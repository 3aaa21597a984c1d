from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from patchsvdd.apps.line.frame_queue import FrameQueue
from patchsvdd.apps.line.sources.source import Frame, SourceEnded, SourceError
from patchsvdd.apps.line.sources.stream import StreamSource
from patchsvdd.apps.line.sources.supervisor import SupervisedSource
from patchsvdd.core.errors import ConfigError
from support.cameras import Codec, RtspServer, rtsp_server, rtsp_server_missing
from support.waiting import wait_until

av = pytest.importorskip("av")

FRAMES = 30
needs_server = pytest.mark.skipif(rtsp_server_missing() is not None, reason=str(rtsp_server_missing()))


def picture(number: int) -> NDArray[np.uint8]:
    """A grey image whose brightness is its number."""
    return np.full((48, 64, 3), 5 * number + 20, np.uint8)


def number_in(frame: Frame | None) -> int:
    """The number of the picture in a frame."""
    assert frame is not None
    assert frame.pixels is not None
    assert frame.pixels.shape == (48, 64, 3)
    return round((float(frame.pixels.mean()) - 20) / 5)


@pytest.fixture(scope="module", params=["libx264", "mjpeg"])
def video(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A video of 30 pictures."""
    path = tmp_path_factory.mktemp("video") / f"{request.param}.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream(request.param, rate=10)
        stream.width, stream.height = 64, 48
        stream.pix_fmt = "yuvj420p" if request.param == "mjpeg" else "yuv420p"
        for number in range(FRAMES):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture(number), "rgb24")))
        container.mux(stream.encode())
    return path


def read_all(source: StreamSource) -> list[Frame]:
    """Every image until the source ends."""
    source.open()
    frames: list[Frame | None] = []
    with pytest.raises(SourceEnded, match="has no more images"):
        frames.extend(iter(lambda: source.read(10), "never"))
    source.close()
    return [frame for frame in frames if frame is not None]


# Video files


def test_a_video_gives_every_image_once(video: Path) -> None:
    frames = read_all(StreamSource("tape", str(video)))
    assert [number_in(frame) for frame in frames] == list(range(FRAMES))
    assert [frame.number for frame in frames] == list(range(FRAMES))
    assert frames[7].name == "tape-000007.png"


def test_every_third_image(video: Path) -> None:
    source = StreamSource("tape", str(video), every=3)
    assert [number_in(frame) for frame in read_all(source)] == list(range(0, FRAMES, 3))
    assert source.lost == 0


def test_a_video_that_is_repeated_does_not_end(video: Path) -> None:
    source = StreamSource("tape", str(video), loop=True)
    source.open()
    frames = [source.read(10) for _ in range(2 * FRAMES + 5)]
    source.close()
    assert [number_in(frame) for frame in frames if frame] == [*range(FRAMES), *range(FRAMES), *range(5)]


def test_each_trigger_gives_the_next_image_of_a_video(video: Path) -> None:
    source = StreamSource("tape", str(video), trigger="software")
    source.open()
    assert source.read(0.05) is None
    for number in range(3):
        source.trigger()
        assert number_in(source.read(10)) == number
        assert source.read(0.02) is None
    source.trigger()
    source.flush()
    assert source.read(0.02) is None
    source.close()


def test_a_damaged_video_gives_what_can_be_decoded(video: Path, tmp_path: Path) -> None:
    damaged = bytearray(video.read_bytes())
    middle = len(damaged) // 2
    damaged[middle : middle + 40] = bytes(40)
    path = tmp_path / video.name
    path.write_bytes(damaged)
    frames = read_all(StreamSource("tape", str(path)))
    assert FRAMES // 3 < len(frames) <= FRAMES


@pytest.mark.parametrize("content", [b"", b"no video at all" * 100])
def test_a_file_that_is_no_video_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.mp4"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=r"stream 'tape' \(.*broken\.mp4\) cannot be opened: Invalid data"):
        StreamSource("tape", str(path)).open()


def test_missing_files_and_cameras_are_named() -> None:
    with pytest.raises(SourceError, match=r"stream 'tape' \(none\.mp4\): there is no such file"):
        StreamSource("tape", "none.mp4").open()
    with pytest.raises(SourceError, match=r"stream 'usb' \(/dev/video97\): there is no such camera"):
        StreamSource("usb", "/dev/video97").open()


def test_settings_are_checked() -> None:
    for settings, message in (
        ({"every": 0}, "`every` must be at least 1"),
        ({"stall": 0.0}, "`stall` must be more than 0 seconds"),
        ({"transport": "http"}, "`transport` must be one of tcp, udp; got 'http'"),
        ({"trigger": "hardware"}, "`trigger` must be one of none, software; got 'hardware'"),
        ({"loop": True}, "`loop` is for video files only"),
        ({"password": "x"}, "`password` is for an address like"),
    ):
        with pytest.raises(ConfigError, match=message):
            StreamSource("side", "rtsp://host/stream", **settings)


def test_passwords_are_not_shown() -> None:
    for source in (
        StreamSource("side", "rtsp://me:hush@127.0.0.1:1/x?token=hush"),
        StreamSource("side", "rtsp://me@127.0.0.1:1/x", password="hush"),
    ):
        with pytest.raises(SourceError, match=r"\(rtsp://127\.0\.0\.1:1/x\) cannot be opened: Connection refused") as e:
            source.open()
        assert "hush" not in str(e.value)


# RTSP


@pytest.fixture(scope="module", params=["h264", "mjpeg"])
def server(request: pytest.FixtureRequest) -> Iterator[RtspServer]:
    codec: Codec = request.param
    with rtsp_server(codec) as server:
        yield server


def ball(frame: Frame | None) -> tuple[float, float]:
    """Where the ball is."""
    assert frame is not None
    assert frame.pixels is not None
    assert frame.pixels.shape == (120, 160, 3)
    rows, columns = np.nonzero(frame.pixels[..., 0] > 128)
    assert 100 < len(rows) < 5000
    return float(rows.mean()), float(columns.mean())


@needs_server
@pytest.mark.service
def test_a_stream_gives_moving_images(server: RtspServer) -> None:
    other, source = StreamSource("other", server.url), StreamSource("side", server.url)
    other.open()  # so that the second joins between two key frames
    assert [other.read(10) is not None for _ in range(3)] == [True] * 3
    source.open()
    frames = [source.read(10) for _ in range(8)]
    source.close()
    other.close()
    places = [ball(frame) for frame in frames]
    assert len(set(places)) == len(places)
    assert all(np.hypot(*np.subtract(later, earlier)) < 12 for earlier, later in pairwise(places))
    arrived = [(frame.number, frame.captured - time.time(), frame.captured) for frame in frames if frame is not None]
    assert [number for number, _, _ in arrived] == list(range(8))
    assert all(-10 < age <= 0 for _, age, _ in arrived)
    assert all(later[2] > earlier[2] for earlier, later in pairwise(arrived))
    assert source.lost == 0


@needs_server
@pytest.mark.service
def test_a_trigger_gives_the_next_image_of_a_stream(server: RtspServer) -> None:
    source = StreamSource("side", server.url, trigger="software")
    source.open()
    for _ in range(3):
        start = time.monotonic()
        assert source.read(0.15) is None
        assert time.monotonic() - start < 5
        before = time.time()
        source.trigger()
        frame = source.read(10)
        assert frame is not None
        assert frame.captured >= before - 0.001
        ball(frame)
    assert source.read(0.1) is None
    source.close()


@needs_server
@pytest.mark.service
def test_a_stream_that_stalls_or_ends_is_opened_again(server: RtspServer) -> None:
    def make() -> Any:
        return StreamSource("side", server.url, stall=0.6)

    source = make()
    source.open()
    assert source.read(10) is not None
    server.pause()
    start = time.monotonic()
    with pytest.raises(SourceError, match=r"sent no image for 0\.6 s"):
        list(iter(lambda: source.read(0.2), "never"))
    assert 0.5 < time.monotonic() - start < 5
    server.resume()
    source.close()

    queue, events = FrameQueue(4), list[str]()
    kept = SupervisedSource(make(), queue, on_event=events.append, retry_first=0.05, retry_longest=0.2)
    kept.start()
    try:
        wait_until(lambda: kept.state().frames > 2)
        server.kill()
        wait_until(lambda: kept.state().state == "failed")
        server.start()
        wait_until(lambda: kept.state().reconnects == 1 and kept.state().frames_per_second > 2)
    finally:
        kept.close()
    assert events[0] == "side: connected"
    assert events[1].startswith(f"side: lost: stream 'side' ({server.url}) ")
    assert events[-1] == "side: connected again"
