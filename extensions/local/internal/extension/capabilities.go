//go:build linux

package extension

import "github.com/sand-boxer/terraform-provider-sandboxer/sdk"

// staticCapabilities is the document without a look at the machine. Classes
// that depend on it are the weakest that they can have.
func staticCapabilities() sdk.Capabilities {
	return sdk.Capabilities{}
}
