"""Files for other tools, from a strategy: DeepSpeed JSON, accelerate YAML, job scripts, ``plan.yaml``.

``plan_file`` reads ``plan.yaml`` again.
"""
