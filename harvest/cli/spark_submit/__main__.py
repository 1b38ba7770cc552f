"""The command `harvest`, when Spark starts it; otherwise prints where this file is:

spark-submit --master URL "$(python -m harvest.cli.spark_submit)" …
"""

from harvest.cli.__main__ import main
from marshal_py.cli.spark_submit import start

if __name__ == "__main__":
    start("harvest", __file__, main)
