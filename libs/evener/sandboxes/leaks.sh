# Prints a line for each thing in a sandbox that gives an agent its solution or its tests, before the agent starts.
# Usage: sh -c "$(cat leaks.sh)" leaks ROOT PATCHES WORKDIR REPOSITORY ... -- EMPTY ... -- ABSENT ...
# PATCHES: a folder with the patches of tests and solution, which must not be applied in the working directory.
set -u
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
export GIT_NO_REPLACE_OBJECTS=1 GIT_OPTIONAL_LOCKS=0 GIT_TERMINAL_PROMPT=0
root=$1 patches=$2 workdir=$3
export GIT_CEILING_DIRECTORIES="${root:-/}"
shift 3
shown() { printf '%s' "/${1#"$root"}" | sed 's|^//*|/|'; }

history() {
    stored=$(git cat-file --batch-all-objects --batch-check='%(objectname)' | sort -u | wc -l)
    reached=$(git rev-list --objects HEAD | cut -d' ' -f1 | sort -u | wc -l)
    [ "$stored" -eq "$reached" ] || echo "$(shown "$1") has $((stored - reached)) objects that its commit does not reach"
    current=$(git symbolic-ref -q HEAD || true)
    git for-each-ref --format='%(refname)' | while IFS= read -r ref; do
        [ "$ref" = "$current" ] || echo "$(shown "$1") has the ref $ref"
    done
    for file in logs FETCH_HEAD ORIG_HEAD worktrees modules objects/info/alternates; do
        [ ! -e ".git/$file" ] || echo "$(shown "$1") has .git/$file"
    done
    git remote | while IFS= read -r remote; do echo "$(shown "$1") has the remote $remote"; done
}

if cd "$workdir" 2>/dev/null; then
    for patch in "$patches"/*.patch; do
        if [ -s "$patch" ] && git apply --reverse --check "$patch" 2>/dev/null; then
            echo "$(shown "$workdir") has the changes of $(basename "$patch" | tr % /) already"
        fi
    done
fi
known=
while [ "$1" != -- ]; do
    if cd "$1" 2>/dev/null && [ -e .git ] && git rev-parse -q --verify HEAD >/dev/null 2>&1; then
        history "$1"
        base=$(git rev-parse HEAD^0)
        known="$known
$(pwd -P)/.git"
        find "${root:-/}" -xdev -maxdepth 8 \( -path "$root/proc" -o -path "$root/sys" \) -prune -o -type d \( -name .git -o -name '*.git' \) -print \
            2>/dev/null | while IFS= read -r other; do
            case "$known" in *"
$other"*) continue ;; esac
            git --git-dir="$other" cat-file -e "$base" 2>/dev/null && echo "$(shown "$other") is another repository with the same commit"
        done
        for left in $(find . -type d \( -name __pycache__ -o -name .pytest_cache \) 2>/dev/null | head -3); do
            echo "$(shown "$1/${left#./}") was left by a program"
        done
    fi
    shift
done
shift
while [ "$1" != -- ]; do
    [ -z "$(ls -A "$1" 2>/dev/null)" ] || echo "$(shown "$1") is not empty"
    shift
done
shift
for place; do
    if [ -e "$place" ] || [ -L "$place" ]; then echo "$(shown "$place") is there"; fi
done
