# To be sourced: `make_venv <requirement>` installs the package into .venv.

find_python() {
  local name
  for name in python3.12 python3.11 python3; do
    if command -v "$name" >/dev/null && "$name" -c \
      'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$name"
      return
    fi
  done
  echo "Python 3.11 or newer with venv is needed: apt-get install python3-venv" >&2
  return 1
}

make_venv() {
  if [[ ! -x .venv/bin/python ]]; then
    local python
    python=$(find_python)
    "$python" -m venv .venv
  fi
  local pip=(.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt)
  # uv is faster than pip; if uv can't be installed or can't reach the index, pip is used.
  # No cache, because it would keep more than a gigabyte for each build of pyspark.
  "${pip[@]}" uv 2>/dev/null &&
    .venv/bin/uv pip install --quiet --no-cache --python .venv/bin/python -c constraints.txt -e "$1" 2>/dev/null ||
    "${pip[@]}" -e "$1"
}
