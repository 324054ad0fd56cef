"""The network and its objective, as functions of a batch.

Axis letters, here and wherever arrays of the model are meant:

    g  group: the records that one data-parallel device holds      d  feature of a token
    r  record of a group                                           h  feature of a state
    b  record of the whole batch (g and r in one axis)             c  channel of a layer
    n  beat of a record, from the first                            l  lead
    m  packed beat of a group (see masking.py)                     k  axis of the heart vector
    p  sample of a beat                                            t  sample of a record
    w  window of a long record                                     s  subset of leads
"""
