from hypothesis import settings

# Deadlines measure the machine, and the machine is shared.
settings.register_profile("core", deadline=None)
settings.load_profile("core")
