"""The measuring kit: train cases under real DeepSpeed and note what they allocated.

    python -m benchmarks.measure.predict CASES.json -o PREDICTED.json   # no GPU
    python -m benchmarks.measure.launch PREDICTED.json -o ROWS.jsonl    # on a host with GPUs
    python benchmarks/accuracy.py --data ROWS.jsonl                     # no GPU

``data/README.md`` says what a row holds.
"""
