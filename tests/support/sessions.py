"""How the tests' Spark sessions are set up: for jobs of a few rows."""

from tempfile import gettempdir

JVM = " ".join(
    (
        # The compiler's second tier and parallel collectors cost more than they bring.
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        # One tier has 48 MB for its code. A run fills them, and compiles code again.
        "-XX:ReservedCodeCacheSize=256m",
        # Below these sizes the heap is collected again and again while it grows.
        "-XX:MetaspaceSize=512m",
        "-Xms1g",
        "-Xmn448m",
        # Classes of installed JARs are taken as they are.
        "-XX:+UnlockDiagnosticVMOptions",
        "-XX:-BytecodeVerificationRemote",
        # Hadoop starts `chmod` for each file; without this, by way of a helper process.
        "-Djdk.lang.Process.launchMechanism=VFORK",
    )
)
CONFIG = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": JVM,
    "spark.driver.memory": "1g",
    "spark.local.dir": gettempdir(),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.session.timeZone": "UTC",
    # Code that runs once is interpreted sooner than compiled.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
