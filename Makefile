VENV ?= .venv
BIN := $(VENV)/bin
# Keep compiled modules, even if the environment forbids it, because the tests start many processes.
export PYTHONDONTWRITEBYTECODE =
export Q ?= In which country is the birthplace of the spouse of Worfle Shenlei?

WORK ?= study

.PHONY: ask test test-engines test-all audit check study protos client docs pictures clean

# Ask the demo, even if the checkout has a rolegate.toml.
ask: $(VENV)/ready
	@$(BIN)/rolegate ask --preset mini --stream -- "$$Q"

# One process more than cores, because many tests wait for timeouts, retries and starting programs.
JOBS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))

# Tests that measure CPU time run first, in two processes. `|| echo tests`: without any file, pytest would
# collect all files.
test: $(VENV)/ready-dev
	@$(BIN)/pytest -n 2 -m "timing and not slow" $$(grep -rlw --include='*.py' 'mark.timing' tests || echo tests)
	@$(BIN)/pytest -n $(JOBS) -m "not (engines or slow or postgres or timing)"

test-engines: $(VENV)/ready-dev
	@$(BIN)/pytest -m engines

# List known vulnerabilities of the packages in the image. If the package index has no such data, pip-audit
# says so for each package, and passes.
audit: $(VENV)/ready-dev
	@$(BIN)/pip-audit --requirement deploy/requirements.lock --disable-pip --progress-spinner off

test-all: test test-engines
	@$(BIN)/pytest -n $(JOBS) -m "(slow or postgres) and not (engines or timing)"
	@$(MAKE) --no-print-directory audit

check: $(VENV)/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/sync_client.py --check
	PYTHONPATH=protos $(BIN)/lint-imports
	$(BIN)/python scripts/size.py
	$(BIN)/python scripts/wording.py
	$(BIN)/python scripts/configuration.py --check
	$(BIN)/python scripts/reference.py --check
	@fresh=$$(mktemp -d) && $(MAKE) --no-print-directory protos OUT=$$fresh >/dev/null && \
	  for file in $$(cd $$fresh && find . -type f); do cmp $$fresh/$$file protos/$$file || exit 1; done && \
	  rm -r $$fresh && echo "generated code is fresh"

study: $(VENV)/ready-dev
	@$(BIN)/rolegate bench mini-study --work "$(WORK)"

OUT ?= protos
protos: $(VENV)/ready-dev
	@PATH="$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=$(OUT) --pyi_out=$(OUT) \
	  --grpc_python_out=$(OUT) --mypy_grpc_out=quiet:$(OUT) protos/rolegate/v1/*.proto

client: $(VENV)/ready-dev
	@$(BIN)/python scripts/sync_client.py

docs: $(VENV)/ready-dev
	@$(BIN)/python scripts/configuration.py
	@$(BIN)/python scripts/reference.py

pictures: $(VENV)/ready-dev
	@$(BIN)/python -m scripts.pictures docs/pages --width 1280 --theme light \
	  --path /runs/run-reading /runs/run-table /runs/run-reading/agents/execution-2 /ask/run-right

clean:
	rm -rf $(VENV)

$(VENV)/ready: pyproject.toml scripts/setup.sh
	@sh scripts/setup.sh $(VENV) && touch $@

$(VENV)/ready-dev: pyproject.toml scripts/setup.sh
	@sh scripts/setup.sh $(VENV) dev && touch $(VENV)/ready $@
