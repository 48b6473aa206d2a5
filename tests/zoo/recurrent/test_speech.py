"""Log-mel features, Speech Commands as Google-12 and Google-30, and folders of recordings."""

import hashlib
import io
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import wavfile

from equilibria.run import data
from equilibria.run.data import DataError
from equilibria.zoo.io import remote, sound
from equilibria.zoo.recurrent.data import SequenceSet, speech
from file_server import FileServer, serve_entry, serving
from packed import tar_of

# --- features ------------------------------------------------------------------------------------


def tone(hertz: float, seconds: float = 1.0, rate: int = sound.RATE) -> torch.Tensor:
    return 0.5 * torch.sin(torch.arange(int(seconds * rate)) * (2 * math.pi * hertz / rate))


def test_a_second_has_99_steps_of_32_features():
    assert sound.log_mel(tone(440)).shape == (99, 32)
    assert sound.log_mel(torch.zeros(3, 2, 16_000)).shape == (3, 2, 99, 32)
    assert [sound.steps(n) for n in (1, 400, 401, 560, 561)] == [1, 1, 2, 2, 3]
    for samples in (1, 400, 401, 560, 561):
        assert sound.log_mel(torch.ones(samples)).shape == (sound.steps(samples), 32)
    with pytest.raises(ValueError, match="there is no sample"):
        sound.log_mel(torch.zeros(0))


def test_a_step_is_the_spectrum_of_its_own_25_ms():
    wave = torch.rand(16_000, generator=torch.Generator().manual_seed(0)) - 0.5
    features = sound.log_mel(wave)
    for step in (0, 7, 98):
        window = np.zeros(400)
        piece = wave.numpy()[160 * step : 160 * step + 400]
        window[: len(piece)] = piece  # the last one is filled up
        power = abs(np.fft.rfft(window * np.hamming(400), 512)) ** 2
        expected = np.log(power @ sound.filters().double().numpy())
        assert abs(features[step].numpy() - expected).max() < 1e-3


@pytest.mark.parametrize("hertz", [100, 440, 1000, 3000, 7000])
def test_a_tone_is_in_the_filter_around_its_frequency(hertz):
    place = 2595 * math.log10(1 + hertz / 700) / (2595 * math.log10(1 + 8000 / 700)) * 33 - 1
    assert abs(int(sound.log_mel(tone(hertz))[50].argmax()) - place) <= 0.6


def test_every_filter_is_a_triangle_over_some_frequencies():
    filters = sound.filters()
    assert filters.shape == (257, 32)
    assert ((filters > 0).sum(0) >= 3).all()
    assert filters.min() == 0 and filters.max() <= 1
    # From the first peak to the last, the two triangles over a frequency add up to one.
    inside = slice(int(filters[:, 0].argmax()) + 1, int(filters[:, -1].argmax()))
    assert torch.allclose(filters[inside].sum(1), torch.ones(()), atol=1e-6)


def test_loudness_adds_a_constant_and_silence_lies_at_the_floor():
    wave = torch.randn(16_000, generator=torch.Generator().manual_seed(1)) * 0.1
    louder = sound.log_mel(2 * wave) - sound.log_mel(wave)
    assert torch.allclose(louder, torch.tensor(4.0).log(), atol=1e-4)
    assert torch.allclose(sound.log_mel(torch.zeros(16_000)), torch.tensor(sound.FLOOR).log())


# --- a small archive -----------------------------------------------------------------------------

PER_WORD = 12
PITCH = {word: 200.0 + 100 * number for number, word in enumerate(speech.WORDS)}


def as_wav(wave: torch.Tensor) -> bytes:
    content = io.BytesIO()
    wavfile.write(content, sound.RATE, (wave * 2**15).to(torch.int16).numpy())
    return content.getvalue()


def utterances() -> dict[str, bytes]:
    """Twelve of each word, of twelve speakers; one of them is shorter than a second."""
    files = {}
    for word in speech.WORDS:
        for number in range(PER_WORD):
            speaker = hashlib.sha1(f"speaker {number}".encode()).hexdigest()[:8]
            seconds = 1.0 if number else 0.5
            files[f"{word}/{speaker}_nohash_0.wav"] = as_wav(tone(PITCH[word], seconds))
    return files


def listed(files: dict[str, bytes]) -> dict[str, bytes]:
    """The archive's lists: the first two speakers test, the third validates."""
    words = {word: [name for name in files if name.startswith(f"{word}/")] for word in speech.WORDS}
    rows = {
        "testing_list.txt": [name for each in words.values() for name in each[:2]],
        "validation_list.txt": [name for each in words.values() for name in each[2:3]],
    }
    return {name: "".join(f"{row}\n" for row in each).encode() for name, each in rows.items()}


def noises() -> dict[str, bytes]:
    generator = torch.Generator().manual_seed(0)
    waves = {
        name: 0.1 * torch.randn(12 * sound.RATE, generator=generator) for name in ("tap", "pink")
    }
    return {f"_background_noise_/{name}.wav": as_wav(wave) for name, wave in waves.items()}


@pytest.fixture(scope="module")
def files():
    words = utterances()
    return {**words, **listed(words), **noises(), "README.md": b"nobody asked for this one"}


def packed(files: dict[str, bytes]) -> bytes:
    return tar_of(((f"./{name}", each) for name, each in files.items()), mode="w:gz")


@pytest.fixture(scope="module")
def archive(files):
    return packed(files)


def served(monkeypatch: pytest.MonkeyPatch, server: FileServer, content: bytes) -> None:
    """Let the server have `content` for the archive."""
    (archive,) = speech.GOOGLE12.remotes[0].files
    server.files[archive] = content
    checksums = {archive: f"sha256:{hashlib.sha256(content).hexdigest()}"}
    for name in ("GOOGLE12", "GOOGLE30"):
        serve_entry(monkeypatch, server, speech, name, checksums=checksums)


@pytest.fixture
def server(cache, archive, monkeypatch):
    """A server with a small archive in place of Speech Commands."""
    with serving() as server:
        served(monkeypatch, server, archive)
        yield server


def unpack(files: dict[str, bytes], root: Path) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def counts(found: SequenceSet) -> list[list[int]]:
    splits = (found.train, found.valid, found.test)
    return [split.targets.bincount().tolist() for split in splits if split is not None]


def test_google12_and_google30_share_a_download_and_the_features(server, monkeypatch):
    twelve = data.load("google12", kind=SequenceSet)
    monkeypatch.setattr(speech, "_features", None)  # they are in the cache
    thirty = data.load("google30", kind=SequenceSet)
    assert len(server.requests) == 1
    assert (twelve.title, thirty.title) == ("Google-12", "Google-30")
    assert twelve.labels == (*speech.COMMANDS, "silence", "unknown")
    assert (len(thirty.labels), thirty.channels) == (30, sound.CHANNELS)
    assert thirty.train.inputs.shape == (30 * 9, 99, 32)
    assert counts(thirty) == [[9] * 30, [1] * 30, [2] * 30]
    # A tenth of the commands as silence and as unknown words, rounded up.
    assert counts(twelve) == [[9] * 12, [1] * 12, [2] * 12]
    assert twelve.source == server.url("speech_commands_v0.01.tar.gz")
    assert twelve.checksum == data.load("google12").checksum != thirty.checksum


def test_a_class_has_the_sound_of_its_word(server):
    thirty = data.load("google30", kind=SequenceSet)
    twelve = data.load("google12", kind=SequenceSet)
    for found, words in ((thirty, speech.WORDS), (twelve, speech.COMMANDS)):
        for number, word in enumerate(words):
            inputs = found.train.inputs[found.train.targets == number]
            expected = sound.log_mel(tone(PITCH[word]))
            assert (inputs - expected).abs().max() < 0.1 * expected.abs().max()
    # Unknown words have the sound of none of the commands.
    others = {PITCH[word] for word in speech.WORDS if word not in speech.COMMANDS}
    known = torch.stack([sound.log_mel(tone(pitch)) for pitch in PITCH.values()])
    for split in (twelve.train, twelve.test):
        for inputs in split.inputs[split.targets == 11]:
            nearest = (known - inputs).square().sum((1, 2)).argmin()
            assert list(PITCH.values())[nearest] in others


def test_a_short_utterance_has_silence_before_it(server):
    thirty = data.load("google30", kind=SequenceSet)
    loud = thirty.test.inputs.amax(2)  # the first speaker of each word is among those to test on
    short = loud[:, 0] < 0
    assert int(short.sum()) == 30
    assert (loud[short][:, :45] < 0).all() and (loud[:, 52:] > 0).all()


def test_no_speaker_and_no_noise_is_on_two_sides(server):
    for name in ("google12", "google30"):
        found = data.load(name, kind=SequenceSet)
        assert found.valid is not None
        sides = [set(s.groups.tolist()) for s in (found.train, found.valid, found.test)]
        assert not sides[0] & sides[1] and not sides[0] & sides[2] and not sides[1] & sides[2]
    train = data.load("google12", kind=SequenceSet).train
    of_noise = train.groups[train.targets == 10].unique()
    of_speech = train.groups[train.targets < 10].unique()
    assert len(of_noise) == 2 and not set(of_noise.tolist()) & set(of_speech.tolist())


def test_silence_is_a_stretch_of_noise_at_many_volumes(server):
    train = data.load("google12", kind=SequenceSet).train
    energy = train.inputs[train.targets == 10].exp().mean((1, 2))
    assert energy.max() > 4 * energy.min()
    assert len(energy.unique()) == len(energy)
    full = sound.log_mel(0.1 * torch.randn(16_000)).exp().mean()
    assert energy.max() < 1.2 * full


def test_the_unpacked_archive_is_found_with_and_without_its_lists(cache, files, tmp_path):
    unpack(files, tmp_path / "speech_commands_v0.01")
    found = data.load("google30", tmp_path, download=False)
    assert counts(found) == [[9] * 30, [1] * 30, [2] * 30]
    for name in ("testing_list.txt", "validation_list.txt"):
        (tmp_path / "speech_commands_v0.01" / name).unlink()
    hashed = data.load("google30", tmp_path, download=False)
    names = [name for name in utterances() if name.startswith("bed/")]
    splits = [speech.which_set(name) for name in names]
    assert counts(hashed) == [[splits.count(split)] * 30 for split in speech.SPLITS]
    assert found.checksum != hashed.checksum


def test_the_hash_gives_the_splits_that_warden_published():
    # Of rows of validation_list.txt and testing_list.txt in the official archive.
    valid = ("31f01a8d", "099d52ad", "dca2797e", "6d0ad764", "50f55535", "bfbd0e6b", "32ad5b65")
    test = ("bb05582b", "97f4c236", "f2e59fea", "fdb5155e", "dc75148d", "3f170018", "18f8afd5")
    assert {speech.which_set(f"four/{speaker}_nohash_0.wav") for speaker in valid} == {"valid"}
    assert {speech.which_set(f"right/{speaker}_nohash_3.wav") for speaker in test} == {"test"}
    assert speech.which_set("bed/0a7c2a8d_nohash_1.wav") == speech.which_set("no/0a7c2a8d_nohash_9")
    shares = [speech.which_set(f"{number:08x}_nohash_0.wav") for number in range(5000)]
    assert abs(shares.count("valid") / 5000 - 0.1) < 0.02
    assert abs(shares.count("test") / 5000 - 0.1) < 0.02


@pytest.mark.parametrize(
    ("without", "message"),
    [
        ("sheila/", r"Speech Commands has no sheila/\*\.wav: it is incomplete"),
        ("_background_noise_/", r"has no _background_noise_/\*\.wav"),
    ],
)
def test_an_incomplete_archive_is_refused(server, files, monkeypatch, without, message):
    fewer = {name: each for name, each in files.items() if not name.startswith(without)}
    served(monkeypatch, server, packed(fewer))
    with pytest.raises(DataError, match=message):
        data.load("google12")


@pytest.mark.parametrize(
    ("name", "seconds", "message"),
    [
        ("yes/0a7c2a8d_nohash_0.wav", 0, r"yes/0a7c2a8d_nohash_0\.wav of Speech .* is damaged"),
        ("_background_noise_/tap.wav", 8, r"tap\.wav is too short: a tenth has to be a second"),
    ],
)
def test_a_damaged_recording_is_named(server, files, monkeypatch, name, seconds, message):
    damaged = as_wav(tone(440, seconds)) if seconds else as_wav(tone(440))[:36]
    served(monkeypatch, server, packed({**files, name: damaged}))
    with pytest.raises(DataError, match=message):
        data.load("google30")


def test_an_archive_that_is_cut_off_is_damaged(server, archive, tmp_path, monkeypatch):
    served(monkeypatch, server, archive[:-1000])
    with pytest.raises(DataError, match=r"speech_commands_v0\.01\.tar\.gz is damaged"):
        data.load("google12", tmp_path)


@pytest.mark.data
def test_the_real_archive_has_the_papers_numbers(real):
    if not speech.GOOGLE12.remotes[0].find(remote.data_folders("google12")):
        pytest.skip("EQUILIBRIA_DATA names no folder with Speech Commands")
    twelve = data.load("google12", download=False, kind=SequenceSet)
    assert twelve.valid is not None
    assert [len(s) for s in (twelve.train, twelve.valid, twelve.test)] == [22_246, 3_093, 3_081]
    thirty = data.load("google30", download=False, kind=SequenceSet)
    assert (len(thirty.train), len(thirty.test)) == (51_088, 6_835)


# --- a folder of recordings ----------------------------------------------------------------------


def folder(root: Path, rate: int = 16_000, seconds: tuple[float, ...] = (1.0,) * 8) -> Path:
    for word, hertz in (("high", 2000), ("low", 300)):
        (root / word).mkdir(parents=True)
        for number, length in enumerate(seconds):
            sound.write(root / word / f"{number}.wav", tone(hertz, length, rate), rate)
    return root


def test_a_folder_of_recordings_has_a_class_for_each_subfolder(tmp_path):
    found = data.load(str(folder(tmp_path / "words")), kind=SequenceSet)
    assert (found.title, found.labels) == ("words", ("high", "low"))
    assert found.train.inputs.shape == (12, 99, 32) and found.test.inputs.shape == (4, 99, 32)
    assert found.train.lengths is None and found.channels == sound.CHANNELS
    for split in (found.train, found.test):
        peaks = split.inputs[:, 50].argmax(1)
        assert (peaks[split.targets == 0] > 15).all() and (peaks[split.targets == 1] < 8).all()


def test_a_table_of_recordings_keeps_speakers_on_one_side(tmp_path):
    folder(tmp_path)
    rows = [f"{word}/{n}.wav,{word},speaker {n % 4}" for word in ("high", "low") for n in range(8)]
    (tmp_path / "labels.csv").write_text("\n".join(["file,label,group", *rows]))
    found = data.load(str(tmp_path), kind=SequenceSet)
    assert (len(found.train), len(found.test)) == (12, 4)
    assert not set(found.train.groups.tolist()) & set(found.test.groups.tolist())


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000])
def test_recordings_of_any_rate_have_the_same_features(tmp_path, rate):
    for hertz in (300, 2000):
        sound.write(tmp_path / "a.wav", tone(hertz, rate=rate), rate)
        found, expected = sound.features(tmp_path / "a.wav"), sound.log_mel(tone(hertz))
        assert found.shape == expected.shape == (99, 32)
        inner = slice(3, 95)  # the filter rings at both ends
        difference = (found[inner] - expected[inner]).abs()
        assert difference[expected[inner] > 0].max() < 0.1


def test_recordings_of_any_length_are_padded_and_keep_their_lengths(tmp_path):
    folder(tmp_path, seconds=(0.01, 0.5, 1.0, 2.0))
    found = data.load(str(tmp_path), kind=SequenceSet).train
    assert found.lengths is not None
    assert set(found.lengths.tolist()) <= {1, 49, 99, 199}
    for inputs, length in zip(found.inputs, found.lengths.tolist(), strict=True):
        assert (inputs[length:] == 0).all() and (inputs[:length] != 0).all()


def test_what_is_wrong_with_a_folder_of_recordings_is_named(tmp_path):
    folder(tmp_path, seconds=(0.1,) * 4)
    song = tmp_path / "high" / "song.wav"
    song.write_bytes(b"ID3" + bytes(100))
    with pytest.raises(DataError, match=r"song\.wav is damaged, or no recording"):
        data.load(str(tmp_path), kind=SequenceSet)
    song.rename(song.with_suffix(".mp3"))
    with pytest.raises(DataError, match=r"song\.mp3 is none of \.csv, \.tsv"):
        data.load(str(tmp_path), kind=SequenceSet)
    song.with_suffix(".mp3").unlink()
    sound.write(song, torch.zeros(100), 7)
    with pytest.raises(DataError, match=r"song\.wav has 7 samples per second: expected 1,000 to"):
        data.load(str(tmp_path), kind=SequenceSet)
    song.unlink()
    (tmp_path / "high" / "table.csv").write_text("1.5,2\n3,4\n")
    with pytest.raises(DataError, match=r"table\.csv has 2 channels, and .*wav has 32"):
        data.load(str(tmp_path), kind=SequenceSet)
