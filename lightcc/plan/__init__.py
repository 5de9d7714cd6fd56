"""Predicts a training step on hosts that are not there yet: `python -m lightcc.plan`.

- `workload` has what a rank computes: when each gradient is ready, and how large it is.
- `site` has the hosts and their links, `costs` what a message, a byte and a reduction take.
- `levels` arranges members as the engine does, and says what each sends on a level.
- `network` has the processors and links of all hosts, and plays messages in virtual time.
- `buckets` has what one bucket of gradients does, by algorithm and compression.
- `sequencer` is rank 0's: which gradients share a bucket, and when it is announced.
- `simulator` plays steps with all of these.
- `ways` has ways of sharding and of local steps: what each sends and takes.
- `report` makes tables of all that.

See docs/running/plan.md.
"""
