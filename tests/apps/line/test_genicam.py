from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from patchsvdd.apps.line.frame_queue import FrameQueue
from patchsvdd.apps.line.sources.aravis import list_cameras
from patchsvdd.apps.line.sources.genicam import GenicamSource
from patchsvdd.apps.line.sources.source import Frame, SourceError
from patchsvdd.apps.line.sources.supervisor import SupervisedSource
from patchsvdd.core.errors import ConfigError
from support.cameras import FakeCamera, fake_camera, fake_camera_missing, fake_image
from support.waiting import wait_until

pytestmark = [
    pytest.mark.service,
    pytest.mark.skipif(fake_camera_missing() is not None, reason=str(fake_camera_missing())),
]

FULL, SMALL = {"Width": 512, "Height": 512}, {"Width": 64, "Height": 48}


@pytest.fixture(scope="module")
def camera() -> Iterator[FakeCamera]:
    with fake_camera() as camera:
        yield camera


@pytest.fixture
def opened(camera: FakeCamera) -> Iterator[Any]:
    """Opens a source of the camera."""
    sources: list[GenicamSource] = []

    def open_source(**settings: Any) -> GenicamSource:
        sources.append(GenicamSource("top", camera.address, **{"features": FULL, "pixel_format": "Mono8"} | settings))
        sources[-1].open()
        return sources[-1]

    yield open_source
    for source in sources:
        source.close()


def read(source: GenicamSource, seconds: float = 10.0) -> Frame:
    frame = source.read(seconds)
    assert frame is not None
    return frame


def test_images_are_those_that_the_camera_draws(opened: Any) -> None:
    source = opened(frame_rate=50.0)
    frames = [read(source) for _ in range(10)]
    for frame in frames:
        assert frame.pixels is not None
        assert np.array_equal(frame.pixels, fake_image(frame.number))
        assert frame.source == "top"
        assert frame.name == f"top-{frame.number:06d}.png"
        assert 0 <= time.monotonic() - frame.arrived < 10
        assert abs(time.time() - (time.monotonic() - frame.arrived) - frame.captured) < 0.5
    assert all(later.number - earlier.number == 1 for earlier, later in pairwise(frames))
    assert all(later.captured > earlier.captured for earlier, later in pairwise(frames))
    assert source.lost == 0


def test_the_number_counts_on_where_16_bits_end(camera: FakeCamera, opened: Any) -> None:
    camera.kill()
    camera.start()  # it begins shortly before 65,535
    source = opened(frame_rate=1000.0, features=SMALL, buffers=100)
    first = read(source).number
    assert first < 65_535
    numbers = [first]
    while numbers[-1] < 65_600:
        frame = read(source)
        numbers.append(frame.number)
        assert frame.pixels is not None
        assert np.array_equal(frame.pixels, fake_image(frame.number, 48, 64))
    assert source.lost == numbers[-1] - first + 1 - len(numbers)


def test_a_software_trigger_gives_one_image(opened: Any) -> None:
    source = opened(trigger="software")
    assert source.read(0.2) is None
    numbers = []
    for _ in range(3):
        source.trigger()
        numbers.append(read(source).number)
        assert source.read(0.15) is None
    assert numbers == [numbers[0], numbers[0] + 1, numbers[0] + 2]
    source.trigger()
    time.sleep(0.2)  # the image waits in the stream
    source.flush()
    assert source.read(0.1) is None
    assert source.lost == 0


def test_a_hardware_trigger_is_awaited_and_its_line_checked(opened: Any) -> None:
    source = opened(trigger="hardware", trigger_line="Line0")
    source.trigger()
    assert source.read(0.2) is None
    source.close()
    with pytest.raises(SourceError, match=r"no trigger source Line1; set `trigger_line`: it has Line0, Software"):
        opened(trigger="hardware")


def test_exposure_and_gain_reach_the_camera(opened: Any) -> None:
    source = opened(exposure_us=10_000, gain=1.0)
    frame = read(source)
    source.close()
    assert frame.pixels is not None
    doubled = np.minimum(fake_image(frame.number).astype(int) * 2, 255)
    assert np.array_equal(frame.pixels, doubled)
    with pytest.raises(SourceError, match=r"accepts `exposure_us` from 10 to 1e\+07; got 1e\+08"):
        opened(exposure_us=1e8)
    opened(gain=0.0)  # for the other tests: a camera keeps its settings


def test_other_pixel_formats_are_converted(opened: Any) -> None:
    colour = [191, 127, 63]
    for pixel_format in ("Mono16", "RGB8", "BayerGR8", "BayerGB8"):  # the fake camera confuses RG with BG
        source = opened(pixel_format=pixel_format)
        frame = read(source)
        source.close()
        assert frame.pixels is not None
        grey = fake_image(frame.number)[..., None].astype(int)
        rgb = np.clip(4 * (96 - np.abs(grey - colour)), 0, 255)  # drawn in false colours
        if pixel_format == "Mono16":
            rows, columns = np.mgrid[:512, :512]
            assert np.array_equal(frame.pixels, (rows + columns + frame.number) * 256 % 65_535 // 256)
        elif pixel_format == "RGB8":
            assert np.array_equal(frame.pixels, rgb)
        else:
            assert frame.pixels.shape == (512, 512, 3)
            assert np.percentile(np.abs(frame.pixels - rgb), 97) <= 4  # all but the edges of the pattern


def test_formats_that_the_camera_does_not_have_are_refused(opened: Any) -> None:
    with pytest.raises(SourceError, match=r"pixel format Mono12 .*it offers BayerBG8, .*Mono16; set `pixel_format`"):
        opened(pixel_format="Mono12")
    with pytest.raises(ConfigError, match=r"`pixel_format` must be one of Mono8, .*got 'YUV422_8'"):
        opened(pixel_format="YUV422_8")


def test_features_that_do_not_exist_are_named(opened: Any) -> None:
    with pytest.raises(SourceError, match="NoSuchFeature"):
        opened(features={"NoSuchFeature": 1})


@pytest.mark.slow
def test_a_camera_in_use_says_so(opened: Any) -> None:
    opened()
    with pytest.raises(SourceError, match="is used by another program"):
        opened()


def test_a_camera_that_does_not_exist_says_so() -> None:
    source = GenicamSource("side", "127.0.0.9")
    with pytest.raises(SourceError, match=r"camera 'side' \(127\.0\.0\.9\)"):
        source.open()
    with pytest.raises(SourceError):
        source.read(0)
    source.close()


def test_cameras_are_listed_and_the_first_is_opened() -> None:
    import gi

    gi.require_version("Aravis", "0.8")
    from gi.repository import Aravis

    Aravis.disable_interface("GigEVision")  # which would ask the whole network
    Aravis.enable_interface("Fake")
    try:
        assert [one.id for one in list_cameras()] == ["Fake_1"]
        source = GenicamSource("any")
        source.open()
        frame = read(source)
        assert frame.pixels is not None
        assert np.array_equal(frame.pixels, fake_image(frame.number))
        source.close()
    finally:
        Aravis.disable_interface("Fake")
        Aravis.enable_interface("GigEVision")


def test_a_camera_that_was_switched_off_and_on_is_opened_again(camera: FakeCamera) -> None:
    queue, events = FrameQueue(4), list[str]()
    source = SupervisedSource(
        GenicamSource("top", camera.address), queue, on_event=events.append, retry_first=0.05, retry_longest=0.2
    )
    source.start()
    try:
        wait_until(lambda: source.state().frames > 3)
        camera.kill()
        camera.start()
        wait_until(lambda: source.state().reconnects == 1)
        frames = source.state().frames
        wait_until(lambda: source.state().frames > frames + 3)
    finally:
        source.close()
    assert source.state().state == "stopped"
    assert events[0] == "top: connected"
    assert events[1].startswith("top: lost: camera 'top' (127.0.0.1) does not answer any more; trying again in 0")
    assert events[-1] == "top: connected again"


@pytest.mark.slow
def test_a_trigger_of_a_camera_without_power_is_an_error(camera: FakeCamera, opened: Any) -> None:
    source = opened(trigger="software")
    camera.kill()
    try:
        with pytest.raises(SourceError, match=r"camera 'top' \(127\.0\.0\.1\): .*timeout"):
            source.trigger()
        with pytest.raises(SourceError, match="does not answer any more"):
            source.read(0.5)
        source.trigger()  # does nothing any more
    finally:
        camera.start()


class TestLosses:
    """A camera whose network loses packets. After the other tests: one camera runs at a time."""

    def test_incomplete_images_are_counted_and_never_given(self, camera: FakeCamera) -> None:
        camera.kill()
        lossy = FakeCamera("GV02", lost_per_thousand=2)
        source = GenicamSource("top", lossy.address, frame_rate=100.0)
        try:
            lossy.start()
            source.open()
            frames = [read(source)]
            while source.lost < 5:
                frames.append(read(source))
                pixels = frames[-1].pixels
                assert pixels is not None
                assert np.array_equal(pixels, fake_image(frames[-1].number))
            frames.append(read(source))
            between = frames[-1].number - frames[0].number + 1 - len(frames)
            assert between <= source.lost <= between + 5  # some were lost before the first
        finally:
            source.close()
            lossy.kill()
            camera.start()
