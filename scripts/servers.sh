# To be sourced: `find_servers` installs Debian's PgBouncer and Prometheus if it may;
# the tests of a server that is missing are skipped.

find_servers() {
  local name missing=()
  for name in pgbouncer prometheus; do
    [[ -x /usr/sbin/$name ]] || command -v "$name" >/dev/null || missing+=("$name")
  done
  [[ ${#missing[@]} -eq 0 ]] && return
  local install=(apt-get install --yes --no-install-recommends "${missing[@]}")
  if [[ $EUID -eq 0 ]] && command -v apt-get >/dev/null; then
    apt-get update --quiet=2 && "${install[@]}" >/dev/null && return
  fi
  echo "The tests of ${missing[*]} are skipped; to run them: sudo ${install[*]}" >&2
}
