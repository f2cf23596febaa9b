# By the name of a profile in a library or in the binary, by NAME@REVISION, or by
# its document.
terraform import sandboxer_profile.shell shell
