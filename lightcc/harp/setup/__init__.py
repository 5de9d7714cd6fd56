"""`harp-setup`: prepares a machine for HARP and writes the HARP profile.

    sudo harp-setup --dry-run     # what it would do
    sudo harp-setup               # does it; the last line is "Set up HARP successfully"
    harp-setup --check            # is the machine as the profile says?
    sudo harp-setup --undo        # as it was before

`machine` looks, `pairing` and `datapaths` judge, `plan` decides, `changes` do and undo, `state`
remembers what was changed before it is changed, so that a run that was killed can be undone, too.
What only the kernel can be asked is in `system`.
"""
