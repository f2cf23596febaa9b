// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"io"
	"log/slog"
	"os"
	"strings"
)

// stderr is the process's own standard error, which the host reads. go-plugin
// puts a pipe in the place of os.Stderr whose content travels over gRPC: it
// is lost in a crash and stands still when the host is gone. So the first call
// puts the own one back, see [Serve].
var stderr = os.Stderr

// hostTimeFormat is how go-plugin's host reads a log line's time.
const hostTimeFormat = "2006-01-02T15:04:05.000000Z07:00"

// Logger returns a logger whose lines the host shows as lines of its own log,
// with level and attributes. Values that are secret do not belong in it; an
// [sdk.Secret] hides itself.
func Logger() *slog.Logger { return slog.New(logHandler(stderr)) }

func logHandler(w io.Writer) slog.Handler {
	return slog.NewJSONHandler(w, &slog.HandlerOptions{
		Level: slog.LevelDebug, // the host drops what it does not want
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) > 0 {
				return a
			}
			switch a.Key {
			case slog.MessageKey:
				a.Key = "@message"
			case slog.LevelKey:
				a = slog.String("@level", strings.ToLower(a.Value.String()))
			case slog.TimeKey:
				a = slog.String("@timestamp", a.Value.Time().Format(hostTimeFormat))
			}
			return a
		},
	})
}

// logf writes one line of this package's own.
func logf(level slog.Level, message string, args ...any) {
	Logger().Log(context.Background(), level, message, args...)
}
