# Sourced: `find_pgbouncer` installs PgBouncer where it may; its tests skip without it.

find_pgbouncer() {
  [[ -x /usr/sbin/pgbouncer ]] || command -v pgbouncer >/dev/null && return
  local install=(apt-get install --yes --no-install-recommends pgbouncer)
  if [[ $EUID -eq 0 ]] && command -v apt-get >/dev/null; then
    apt-get update --quiet=2 && "${install[@]}" >/dev/null && return
  fi
  echo "PgBouncer's tests are skipped; to run them: sudo ${install[*]}" >&2
}
