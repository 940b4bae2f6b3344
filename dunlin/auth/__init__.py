"""Certificates, tenants and their keys, allowed web origins."""
