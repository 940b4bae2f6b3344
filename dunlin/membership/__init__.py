"""Membership over etcd v3: leases, watches, election. Import the modules; this package loads nothing by itself.

endpoints, auth, connection   which etcd, as which user, over which channel
client, errors                key-value, transactions, leases
watch_stream, watch           a prefix, followed without gaps
lease_keeper, registration    one lease kept alive; a registration that survives losing it
members, failure_detector     member records, the watch of all of them, and which are gone for good
election                      one leader per epoch
embedded                      the etcd that `dunlin up` brings along
"""
