"""Predicts a training step on hosts that are not there yet: `python -m lightcc.plan`.

- `workload` has what a rank computes: when each gradient is ready, and how large it is.
- `costs` has what a message, a byte and a reduction take.
- `variants` has what one bucket of gradients takes, by algorithm and compression.
- `steps` plays one step in virtual time: which gradients share a bucket, and when each ends.

See docs/running/plan.md.
"""
