# A profile is imported by its id, or by its name when the store has one of it.
terraform import sandboxer_profile.web web
