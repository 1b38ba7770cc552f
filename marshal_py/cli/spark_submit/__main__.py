"""The command `marshal`, when Spark starts it; otherwise prints where this file is:

spark-submit --master URL "$(python -m marshal_py.cli.spark_submit)" …
"""

from marshal_py.cli.app import main
from marshal_py.cli.spark_submit import start

if __name__ == "__main__":
    start("marshal", __file__, main)
