"""Lets espeak-ng speak sentences in three voices, as a folder of wave files of unequal length.

    apt-get install espeak-ng
    python examples/data/speech.py --out speech

A file such as speech/train/woman/0001.wav has one sentence at 22,050 samples per second. The sentences of the folders
train and test differ, and are the same for every call with the same seed.
"""

import argparse
import random
import subprocess
import sys
from pathlib import Path

VOICES = {"man": "en-us", "woman": "en-gb+f3", "scot": "en-gb-scotland+m3"}
"""name of a folder, and that of a voice of espeak-ng"""
_THE = "the a this every no their one her some his".split()
_KIND = "old bright narrow quiet frozen yellow thirsty broken jolly huge careful purple fresh smooth zealous".split()
_WHO = "teacher farmer children pilot fox judge musician neighbours baker young queen giraffe engineer mouse".split()
_DOES = "watches finds measures throws opens follows enjoys buys chooses shapes pushes forgets catches vexes".split()
_WHAT = "boat river orange village machine bridge cloud journey treasure path photograph jar quartz song wheel".split()
_WHERE = "near behind under beyond above without along through around inside before towards".split()
_WHEN = "today, on Thursday, slowly, at noon, for five hours, in July, as usual, twice a year, with joy, again".split(
    ", "
)


def main() -> None:
    """Write the folders that the flags ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--train", type=int, default=120, help="number of sentences of each voice to train on")
    parser.add_argument("--test", type=int, default=10, help="number of other sentences of each voice")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sentences")
    given = parser.parse_args()
    numbers = random.Random(given.seed)
    for part, count in (("train", given.train), ("test", given.test)):
        for voice, name in VOICES.items():
            folder = given.out / part / voice
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(1, count + 1):
                speak(sentence(numbers), name, folder / f"{number:04}.wav", pace=numbers.randint(130, 190))
    print(f"{given.out}: {len(VOICES)} voices with {given.train} sentences to train on, and {given.test} to test")


def sentence(numbers: random.Random) -> str:
    """A sentence of 4 to 18 words."""
    words = [_THE, *[_KIND] * numbers.randint(0, 2), _WHO, _DOES]
    words += [_THE, *[_KIND] * numbers.randint(0, 1), _WHAT] * numbers.randint(0, 1)
    words += [_WHERE, _THE, *[_KIND] * numbers.randint(0, 2), _WHAT] * numbers.randint(0, 1)
    return " ".join(map(numbers.choice, [*words, _WHEN])).capitalize() + "."


def speak(text: str, voice: str, path: Path, pace: int) -> None:
    """Write a text as a wave file, spoken at this number of words per minute."""
    try:
        subprocess.run(["espeak-ng", "-v", voice, "-s", str(pace), "-w", str(path), text], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"espeak-ng: {error}; on Debian: apt-get install espeak-ng")


if __name__ == "__main__":
    main()
