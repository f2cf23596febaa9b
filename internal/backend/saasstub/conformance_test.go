// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/conformance"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/conformance/conformancetest"
)

// The stub conforms to the rules of every backend, also while its vendor
// lies.
func TestConformance(t *testing.T) {
	server := saasstub.NewServer(saasstub.ServerOptions{})
	lie := func(faults ...saasstub.Fault) func() func() {
		return func() func() { server.Inject(faults...); return server.Heal }
	}
	broken := make([]saasstub.Fault, 0, 16)
	for _, call := range []saasstub.Call{
		saasstub.CallCreateBox, saasstub.CallGetBox, saasstub.CallListBoxes, saasstub.CallUpdateBox, saasstub.CallDeleteBox,
	} {
		broken = append(broken, saasstub.Fault{Call: call, Lie: saasstub.Broken})
	}
	conformancetest.Test(t, conformance.Suite{
		New: func(context.Context) (sdk.Extension, func(), error) {
			return saasstub.New(saasstub.Options{Server: server}), nil, nil
		},
		Commands: conformance.Commands{
			Print: func(out, errs string) []string {
				return []string{"sh", "-c", "echo " + out + "; cat /no/" + errs}
			},
			Bytes: func(n int) []string { return []string{"echo", "-n", strings.Repeat("x", n)} },
			Write: func(path, content string) []string {
				return []string{"sh", "-c", "echo -n " + content + " > " + path}
			},
			Sleep: func(d time.Duration) []string { return []string{"sleep", d.String()} },
			Lines: func(n int) []string {
				var script strings.Builder
				for i := range n {
					fmt.Fprintf(&script, "echo line-%d; ", i+1)
				}
				return []string{"sh", "-c", script.String()}
			},
			Ticks: func() []string { return []string{"sh", "-c", strings.Repeat("echo tick; sleep 500ms; ", 600)} },
			Lacks: map[conformance.Command]string{
				conformance.CommandSignal:  "the interpreter has no signals",
				conformance.CommandOrphan:  "no process outlives its command",
				conformance.CommandCounter: "no process outlives its command",
			},
		},
		Faults: map[conformance.Fault]func() func(){
			conformance.FaultLostCreate:       lie(saasstub.Fault{Call: saasstub.CallCreateBox, Lie: saasstub.LoseAnswer, On: 1}),
			conformance.FaultLostExtend:       lie(saasstub.Fault{Call: saasstub.CallUpdateBox, Lie: saasstub.LoseAnswer, On: 1}),
			conformance.FaultLostDestroy:      lie(saasstub.Fault{Call: saasstub.CallDeleteBox, Lie: saasstub.LoseAnswer, On: 1}),
			conformance.FaultPretendedDestroy: lie(saasstub.Fault{Call: saasstub.CallDeleteBox, Lie: saasstub.Pretend}),
			conformance.FaultFalseNotFound:    lie(saasstub.Fault{Call: saasstub.CallGetBox, Lie: saasstub.NotFound}),
			conformance.FaultLostPage:         lie(saasstub.Fault{Call: saasstub.CallListBoxes, Lie: saasstub.DropPage}),
			conformance.FaultRepeatedPage:     lie(saasstub.Fault{Call: saasstub.CallListBoxes, Lie: saasstub.RepeatPage}),
			conformance.FaultThrottled:        lie(saasstub.Fault{Call: saasstub.CallGetBox, Lie: saasstub.RateLimited, On: 1}),
			conformance.FaultUnreachable:      lie(broken...),
			conformance.FaultDiedEarly:        lie(saasstub.Fault{Call: saasstub.CallCreateBox, Lie: saasstub.DieEarly, On: 1}),
		},
		Page:   100,
		Timing: conformance.Timing{Short: 500 * time.Millisecond, Poll: 10 * time.Millisecond, Grace: 5 * time.Second},
	}, nil)
}
