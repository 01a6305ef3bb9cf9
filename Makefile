# make demo      personalize an exercise classifier to a new wearer on an emulated Cortex-M4
# make test      every test that CI runs       make test-all   the slow sweeps too
# make bench     instructions per step kind, RAM of the published schemes      make lint       ruff, mypy
# Each installs what it needs first (apt when root, Python packages in .venv).

PY = .venv/bin/python
OUT = demo-out

.PHONY: demo test test-all bench lint clean setup-demo setup-test

demo: setup-demo
	@$(PY) examples/watch/data.py --out $(OUT)
	@.venv/bin/mcugrad train examples/watch/watch_base.tflite --data $(OUT)/new_wearer.npz --eval $(OUT)/held_out.npz \
	  --board qemu-mps2-an386 --train $$(cat examples/watch/scheme.txt) --epochs 10 --lr 0.1 --seed 1 --check 16 --out $(OUT)/trained.tflite

test: setup-test lint
	@$(PY) -m pytest -m "not slow" --hypothesis-profile=repeatable -n 2 --dist loadfile

test-all: setup-test lint
	@$(PY) -m pytest

bench: setup-test
	@.venv/bin/mcugrad bench examples/watch/watch_base.tflite --train all --board qemu-mps2-an386
	@.venv/bin/mcugrad bench examples/watch/watch_base.tflite --train all --board qemu-mps2-an385
	@$(PY) -m pytest -m slow -s tests/size/test_published_schemes.py

lint: setup-test
	@$(PY) -m ruff check -q host tests examples scripts && $(PY) -m mypy --no-error-summary && $(PY) scripts/tables.py --check

setup-demo:
	@scripts/setup.sh demo

setup-test:
	@scripts/setup.sh demo test

clean:
	rm -rf build .venv $(OUT)
