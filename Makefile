# Short names for common tasks; `make` lists them. CMakeLists.txt builds the code, tools/ has the
# rest.
.DEFAULT_GOAL := help
.PHONY: help setup build wheel demo test test-gpu soak fuzz lint format clean

export PATH := $(CURDIR)/.venv/bin:$(PATH)
JOBS ?= $(shell nproc)

help: ## List these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do \
	  printf '  make %-10s %s\n' "$$name" "$$text"; done

setup: ## Install all that development needs: into .venv, and system packages where there is no other way
	@tools/setup.sh test

build: ## Build the library, the engines and the tests into build/release
	@tools/setup.sh build
	@cmake --preset release
	@cmake --build build/release --parallel $(JOBS)

wheel: ## Build a Python wheel with GPU code into build/dist, for machines without compilers
	@python3 tools/wheel.py

demo: ## Build the command line and search this machine's files with it
	@python3 tools/demo.py

test: ## Run all checks and tests; STAGES="lint cpu" chooses some
	@python3 tools/run_tests.py $(STAGES)

test-gpu: ## Run the tests that need a GPU, also under compute-sanitizer
	@python3 tools/run_tests.py --gpu $(STAGES)

MINUTES ?= 10
soak: ## Run random and enumerated tests with new seeds for MINUTES=10; SOAK="--list" and others
	@tools/setup.sh test
	@cmake --preset release
	@cmake --build build/release --parallel $(JOBS) --target gpufs_tests
	@python3 tools/soak.py $(MINUTES) $(SOAK)

SECONDS ?= 60
fuzz: ## Feed parsers made-up bytes for SECONDS=60 (needs clang++); TARGETS="text paths" chooses some
	@tools/setup.sh build
	@python3 tools/fuzz.py $(SECONDS) $(TARGETS)

lint: ## Check form and types of all sources
	@tools/setup.sh lint
	@tools/lint.sh check

format: ## Bring all sources into form
	@tools/setup.sh lint
	@tools/lint.sh fix

clean: ## Remove everything that was built (.venv stays)
	@rm -rf build
