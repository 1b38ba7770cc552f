"""What `spark-submit` starts for the command `marshal`: it takes files of Python, and no commands.

In a folder of its own, since Spark puts the folder of what it starts first among the modules.
"""
