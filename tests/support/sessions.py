"""How the tests' Spark sessions are set up: for jobs of a few rows."""

# The compiler's second tier and parallel collectors cost more than they bring here.
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CONFIG = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": JVM,
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.session.timeZone": "UTC",
    # Code that runs once is interpreted sooner than compiled.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
