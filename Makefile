# Targets of a checkout with its own .venv. launch/setup.sh makes .venv, and takes a second if nothing has changed.
python := .venv/bin/python
MAKEFLAGS += --no-print-directory
# Tests wait for processes, so that a small machine gets more workers than it has cores, and a large one half as many.
workers := $(shell cores=$$(nproc); echo $$((cores < 8 ? 3 : cores < 24 ? cores / 2 : 12)))
pytest := $(python) -m pytest -n $(workers) --dist worksteal

.PHONY: help setup dev demo check test test-long test-browser test-cluster test-soak test-versions bench docs lint clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1	/p' Makefile

setup:  ## make .venv: TensorFlow, Horovod built against it, hvdgan (2 minutes or more the first time)
	@bash launch/setup.sh

demo: setup  ## train a small GAN on this machine; ARGS='--max-steps 100' goes to the trainer
	@bash launch/demo.sh $(ARGS)

dev:
	@bash launch/setup.sh --dev

check: dev  ## run the quick tests before a commit, several at a time: units, a step, a resumed run, two ranks in one launch (3 minutes)
	$(pytest) -m "core or not (slow or long or cluster or soak)" $(ARGS)

test: dev  ## run the tests of all promises, several at a time (16 minutes or more on two cores); ARGS='-k checkpoint -x' goes to pytest
	$(pytest) $(ARGS)

test-long: dev  ## run what CI adds, several at a time: further kinds, ranks and controllers, many kills; ARGS as above
	$(pytest) -m "long and not cluster" $(ARGS)

test-browser: dev  ## open pages in a real browser; as root on Debian it installs Chromium; ARGS as above
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get install -y -qq --no-install-recommends chromium chromium-driver; } \
	  || echo "no Chromium: the tests are skipped; install chromium and chromium-driver"
	$(python) -m pytest -m browser tests/browser $(ARGS)

test-cluster: dev  ## run the tests on a two-node Slurm made for them; needs root on Debian; ARGS as above
	$(python) -m pytest -m cluster tests/cluster $(ARGS)

test-soak: dev  ## train for an hour while ranks die, freeze and the disk is full; needs root; HVDGAN_SOAK_RANKS=8
	$(python) -m pytest -s -n 0 -m soak tests/faults/test_soak.py $(ARGS)

test-versions: setup  ## run a core of the tests with TensorFlow 2.18 and 2.21, on Python 3.11 and 3.13, and resume a run of 2.18 with 2.21 (about 25 minutes)
	@bash .ci/versions

bench: setup  ## compare hvdgan with Horovod, tf.distribute, Keras and PyTorch (about 20 minutes); ARGS='--only "hvdgan*" --json FILE'
	@bash benchmarks/peers/setup.sh || echo "no PyTorch: its programs are left out"
	$(python) benchmarks/peers/bench.py $(ARGS)

docs: dev  ## build the site of these pages in build/site/index.html; fails on a link that leads nowhere
	@rm -rf build/docs build/site && mkdir -p build/docs && cp -r README.md CHANGELOG.md CONTRIBUTING.md docs examples build/docs
	@$(python) docs/make_api_table.py build/docs/docs/api.md
	$(python) -m zensical build --strict

lint: dev  ## ruff, mypy, phrases that nobody would say (.ci/phrases), and shellcheck
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	$(python) -m mypy
	! git grep -niE -f .ci/phrases -- hvdgan tests benchmarks examples docs launch slurm .ci/run .ci/versions Makefile '*.md'
	.venv/bin/shellcheck $(wildcard launch/*.sh slurm/*.sh slurm/*.sbatch tests/support/*.sh benchmarks/*.sh benchmarks/peers/*.sh) .ci/run .ci/versions

clean:  ## remove all builds, .venv included; runs stay
	rm -rf .venv .venv-openmpi5 .venv-peers .versions .cache build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
