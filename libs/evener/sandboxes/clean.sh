# Cuts the history of repositories to what their current commit reaches, and removes what an agent must not find.
# Usage: sh -c "$(cat clean.sh)" clean HISTORY REPOSITORY ... -- PLACE ...
# A repository gets a new .git with those objects and nothing else: what is not put there is gone.
set -eu
die() { printf '%s\n' "$*"; exit 1; }
export GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*' GIT_CONFIG_KEY_1=core.fsmonitor GIT_CONFIG_VALUE_1=false
export GIT_NO_REPLACE_OBJECTS=1 GIT_OPTIONAL_LOCKS=0 GIT_TERMINAL_PROMPT=0
export GIT_AUTHOR_NAME=base GIT_AUTHOR_EMAIL=base@localhost GIT_AUTHOR_DATE='946684800 +0000'
export GIT_COMMITTER_NAME=base GIT_COMMITTER_EMAIL=base@localhost GIT_COMMITTER_DATE='946684800 +0000'
history=$1
shift

cut_history() {
    [ -d .git ] && [ ! -L .git ] || die "$1/.git is no folder: it is a worktree or a submodule, whose objects are elsewhere"
    head=$(git rev-parse -q --verify 'HEAD^{commit}') || die "$1 has no commit"
    rm -f .git/info/grafts
    [ "$history" != none ] || head=$(git commit-tree -m base "$head^{tree}")
    new=.git-evener-new old=.git-evener-old
    rm -rf "$new" "$old"
    git init -q --bare --template= --object-format="$(git rev-parse --show-object-format 2>/dev/null || echo sha1)" "$new" 2>/dev/null ||
        git init -q --bare --template= "$new"
    mkdir -p "$new/objects/pack" "$new/info"
    printf '%s\n' "$head" | git pack-objects -q --revs --delta-base-offset "$new/objects/pack/pack" >/dev/null ||
        die "what the commit of $1 reaches is not all there"
    if branch=$(git symbolic-ref -q HEAD); then
        mkdir -p "$new/$(dirname "$branch")"
        printf 'ref: %s\n' "$branch" >"$new/HEAD"
        printf '%s\n' "$head" >"$new/$branch"
    else
        printf '%s\n' "$head" >"$new/HEAD"
    fi
    if [ -f .git/shallow ] && [ "$history" != none ]; then
        git rev-list "$head" | grep -Fx -f .git/shallow >"$new/shallow" || rm -f "$new/shallow"
    fi
    for key in core.filemode core.autocrlf core.eol core.symlinks core.ignorecase user.name user.email; do
        if value=$(git config --local --get "$key"); then git config -f "$new/config" "$key" "$value"; fi
    done
    git config -f "$new/config" core.bare false
    for file in exclude attributes; do
        if [ -f ".git/info/$file" ]; then cp ".git/info/$file" "$new/info/$file"; fi
    done
    git --git-dir="$new" --work-tree=. read-tree "$head"
    git --git-dir="$new" --work-tree=. update-index -q --refresh >/dev/null 2>&1 || true
    stored=$(git --git-dir="$new" cat-file --batch-all-objects --batch-check='%(objectname)' | sort -u | wc -l)
    reached=$(git --git-dir="$new" rev-list --objects HEAD | cut -d' ' -f1 | sort -u | wc -l)
    [ "$stored" -eq "$reached" ] || die "the new history of $1 has $stored objects, of which its commit reaches $reached"
    mv .git "$old"
    mv "$new" .git
    rm -rf "$old"
}

while [ "$1" != -- ]; do
    cd "$1" 2>/dev/null || die "there is no folder $1"
    [ -e .git ] || [ -L .git ] || die "$1 is no repository"
    command -v git >/dev/null 2>&1 || die "there is no git, with which the history of $1 would be cut"
    cut_history "$1"
    find . -type d \( -name __pycache__ -o -name .pytest_cache \) -prune -exec rm -rf {} +
    shift
done
shift
for place; do
    rm -rf -- "$place" 2>/dev/null || true
    if [ -e "$place" ] || [ -L "$place" ]; then die "$place cannot be removed"; fi
done
