#!/usr/bin/env bash
# Makes the lock files anew from pyproject.toml; only a maintainer needs it, after a change of dependencies.
#   requirements-build.lock  what ryu's source package needs to build: setuptools<68, wheel, pbr
#   requirements.lock        run time, everything exactly pinned and hashed
#   requirements-dev.lock    the test tools, on top of requirements.lock (no package is in both)
#   requirements-mooncake.lock    the extra of that name, on top of requirements.lock and apart from requirements-dev.lock
# Packages keep their pinned versions unless --upgrade is given. Universal: markers choose per Python version.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tool=$(mktemp -d)
trap 'rm -rf -- "$tool"' EXIT
/usr/bin/python3 -m venv "$tool/venv"
"$tool/venv/bin/pip" install --quiet --disable-pip-version-check uv

printf 'setuptools<68\n' >"$tool/build-constraints.txt"
printf 'pip\nsetuptools<68\nwheel\npbr\n' >"$tool/build.in"
# No header: it would name this machine's folders. No index URL is written unless --emit-index-url is given.
compile() {
    "$tool/venv/bin/uv" pip compile --quiet --no-config --no-header --universal --python /usr/bin/python3 --python-version 3.11 \
        --generate-hashes --build-constraint "$tool/build-constraints.txt" "$@"
}
compile "$tool/build.in" -o requirements-build.lock --no-annotate "${@}"
compile pyproject.toml -o requirements.lock --no-annotate "${@}"
skip=()
while read -r name; do
    skip+=(--no-emit-package "$name")
done < <(sed -n 's/^\([a-z0-9.-]*\)==.*/\1/p' requirements.lock | sort -u)
compile pyproject.toml --extra dev -c requirements.lock -o requirements-dev.lock --no-annotate "${skip[@]}" "${@}"
compile pyproject.toml --extra mooncake -c requirements.lock -c requirements-dev.lock -o requirements-mooncake.lock \
    --no-annotate "${skip[@]}" "${@}"
