"""Settings: declared at the field (`fields`), given in layers (`sources`), resolved and validated (`resolve`), shown.

`docs/settings.md` lists them all. Nothing here knows a service.
"""
