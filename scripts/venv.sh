# Sourced: `make_venv <requirement>` installs the package into .venv.

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
  # uv is faster; where it can't be had or can't reach the index, pip does it all.
  # Its cache would keep more than a gigabyte for each time that pyspark is built.
  "${pip[@]}" uv 2>/dev/null &&
    .venv/bin/uv pip install --quiet --no-cache --python .venv/bin/python -c constraints.txt -e "$1" 2>/dev/null ||
    "${pip[@]}" -e "$1"
}
