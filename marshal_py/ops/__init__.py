"""Files for operators: a Grafana dashboard and Prometheus alert rules (`marshal metrics`)."""
