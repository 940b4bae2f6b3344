"""Membership over etcd v3: leases, watches, election. Import the modules; this package loads nothing by itself.

errors, connection, client    the client: key-value, transactions, leases
watch                         a prefix, followed without gaps
keeper, lease                 one lease kept alive; a registration that survives losing it
members                       member records, and the watch of all of them
election                      one leader per epoch
embedded                      the etcd that `dunlin up` brings along
"""
