// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"fmt"
	"time"
)

// ParseDuration reads a Go duration that is longer than zero.
func ParseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration (want for example \"45m\" or \"1h30m\"; days are 24h)", clip(s))
	}
	if d <= 0 {
		return 0, fmt.Errorf("%q is not longer than zero", clip(s))
	}
	return d, nil
}
