# `sandboxer list` shows the ids.
terraform import sandboxer_sandbox.ci sbx-0jf3k2m9c1q7a5d8h4s6
