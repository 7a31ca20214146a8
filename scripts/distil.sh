#!/bin/sh
# Make the demo's executor, executor-000001: sh scripts/distil.sh FOLDER. A second call resumes the first.
# Teacher and student answer the questions of four worlds, whose names occur neither in the demo nor in a
# benchmark. docs/LOG.md describes how the teacher was trained. `rolegate bench filtering --work FOLDER`
# uses the same rollouts.
set -eu
out=$(mkdir -p "$1" && cd "$1" && pwd)
models=$(cd "$(dirname "$0")/../serving/models" && pwd)

world() { # SEED SIDE QUESTIONS
    [ -e "$out/world-$1/rolegate.toml" ] ||
        rolegate sft mini-world --force --seed "$1" --side "$2" --questions "$3" --out "$out/world-$1"
}

tables() { # SEED
    [ -e "$out/tables-$1/rolegate.toml" ] ||
        rolegate sft mini-world --force --wide --tables 3 --seed "$1" --side train --out "$out/tables-$1"
}

for seed in 9001 9002 9003 9004; do
    world $seed train 300
    rolegate sft rollout --config "$out/world-$seed/rolegate.toml" --questions "$out/world-$seed/questions.jsonl" \
        --out "$out/world-$seed/rollouts" --concurrency 32
done
for seed in 9005 9006; do
    tables $seed
    rolegate sft rollout --config "$out/tables-$seed/rolegate.toml" --questions "$out/tables-$seed/questions.jsonl" \
        --out "$out/tables-$seed/rollouts" --concurrency 4
done
rolegate sft filter "$out"/world-900?/rollouts "$out"/tables-900?/rollouts --out "$out/mixed" \
    --mix student_single=1300,teacher_single=900,teacher_multi=440
rolegate sft dataset "$out/mixed" --model "$models/mini-executor" --out "$out/mixed-data"
rolegate sft train "$out/mixed-data" --model "$models/mini-executor" --recipe mini --out "$out/mixed-trained"
world 17 test 150
rolegate sft evaluate --config "$out/world-17/rolegate.toml" --questions "$out/world-17/questions.jsonl" \
    --executors base "$out/mixed-trained/model" teacher --rollouts 1 --concurrency 32 --out "$out/evaluated"
sed -e "s|^folder = .*|folder = \"$out/versions\"|" -e '/^start = /d' "$out/world-17/rolegate.toml" >"$out/publish.toml"
rolegate sft publish "$out/mixed-trained" --config "$out/publish.toml" --evaluation "$out/evaluated/evaluation.json"
