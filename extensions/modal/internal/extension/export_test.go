// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package extension

// AppName is the name of a fleet's app.
func AppName(fleet string) string { return appName(fleet) }
