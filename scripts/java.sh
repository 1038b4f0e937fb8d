# To be sourced: `find_java` finds Java 17 or newer for Spark, or installs it if it may.

java_is_new_enough() {
  local java=${JAVA_HOME:+$JAVA_HOME/bin/}java version
  version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p') || return 1
  [[ ${version:-0} -ge 17 ]]
}

find_java() {
  java_is_new_enough && return
  local install=(apt-get install --yes --no-install-recommends openjdk-17-jre-headless)
  if [[ $EUID -eq 0 ]] && command -v apt-get >/dev/null; then
    apt-get update --quiet=2 && "${install[@]}" >/dev/null && java_is_new_enough && return
  fi
  echo "Spark needs Java 17 or newer: sudo ${install[*]}" >&2
  return 1
}
