#!/usr/bin/env bash
# What a remote machine does, first and after every interruption. `slm-lab run-remote` sets the
# variables; see docs/REMOTE.md.
set -euo pipefail

# The learning step is compiled where there is a C++ compiler, and several times slower without.
command -v c++ >/dev/null || (sudo apt-get -qq update && sudo apt-get -qq install -y g++) || true

constraints=()
if [ -f "${SLM_LAB_PACKAGE%%\[*}/constraints.txt" ]; then # a checkout, not a version
    constraints=(-c "${SLM_LAB_PACKAGE%%\[*}/constraints.txt")
fi
uv pip install --quiet --torch-backend auto "${constraints[@]}" "$SLM_LAB_PACKAGE"

eval "set -- ${SPEC_VARS:-}" # "$@" are the -s flags now, each word as it was typed
export PYTHONPATH="/slm-lab/own${PYTHONPATH:+:$PYTHONPATH}" # modules that came with the spec file

folder="data/$RUN_FOLDER"
slm-lab pull --if-exists "$RUN_FOLDER" # what an interrupted machine has synced
case "$LAB_MODE" in
    train) started=$(compgen -G "$folder/*_t0_spec.json" || true) ;;
    search) started=$(compgen -G "$folder/ray_tune/journal.jsonl" || true) ;;
    *) started="" ;;
esac
if [ -n "$started" ]; then
    exec slm-lab run "$SPEC_FILE" "$SPEC_NAME" "$LAB_MODE@$folder" "$@" --upload-hf
fi
# If the folder is there with nothing to go on with, the new run gets its name with _02 at the end.
exec slm-lab run "$SPEC_FILE" "$SPEC_NAME" "$LAB_MODE" "$@" --timestamp "$RUN_TIMESTAMP" --upload-hf
