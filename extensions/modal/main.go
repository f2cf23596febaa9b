// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// sandboxer-extension-modal is the extension for Modal: sandboxes in the
// vendor's cloud, with a token of one's own.
package main

import (
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/modal/internal/extension"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin"
)

// version is the extension's version; the release build sets it.
var version = "0.1.0"

func main() {
	plugin.Serve(extension.New(extension.Options{Version: version}))
}
