# To be sourced: `find_pgbouncer` installs PgBouncer if it may; without PgBouncer, its
# tests are skipped.

find_pgbouncer() {
  [[ -x /usr/sbin/pgbouncer ]] || command -v pgbouncer >/dev/null && return
  local install=(apt-get install --yes --no-install-recommends pgbouncer)
  if [[ $EUID -eq 0 ]] && command -v apt-get >/dev/null; then
    apt-get update --quiet=2 && "${install[@]}" >/dev/null && return
  fi
  echo "PgBouncer's tests are skipped; to run them, install it: sudo ${install[*]}" >&2
}
