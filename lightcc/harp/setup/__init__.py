"""`harp-setup`: prepares a machine for HARP and writes the HARP profile.

    harp-setup --dry-run                     # what it would do
    sudo "$(command -v harp-setup)"          # asks and does it: "Set up HARP successfully"
    harp-setup --check                       # is the machine as the profile says?
    sudo "$(command -v harp-setup)" --undo   # as it was before

`machine` looks, `pairing` and `datapaths` judge, `plan` decides, `changes` do and undo, `state`
remembers what was changed before it is changed, so that a run that was killed can be undone, too.
What only the kernel can be asked is in `system`.
"""
