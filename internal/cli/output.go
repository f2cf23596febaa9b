// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
)

// The output formats.
const (
	formatTable = "table"
	formatJSON  = "json"
)

// printsData gives a command the flags of everything that prints data.
func (a *app) printsData(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&a.format, "output", "o", formatTable, "output `FORMAT`: table or json")
	cmd.Flags().BoolVar(&a.json, "json", false, "short for --output json")
}

// printJSON prints one object or array.
func (a *app) printJSON(data any) error {
	encoder := json.NewEncoder(a.Stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(data)
}

// print prints data: as JSON, or as tables with an empty line between them.
// The first row of a listing's table is its heading.
func (a *app) print(data any, tables ...[][]string) error {
	if a.format == formatJSON {
		return a.printJSON(data)
	}
	for i, rows := range tables {
		if i > 0 {
			if err := writeAll(a.Stdout, "\n"); err != nil {
				return err
			}
		}
		if err := a.printTable(rows); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) printTable(rows [][]string) error {
	table := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			if cells[i] = printable(cell, false); cells[i] == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(table, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
	}
	return table.Flush()
}

// facts turns pairs into rows of one thing; empty values are left out.
func facts(pairs ...string) [][]string {
	var rows [][]string
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			rows = append(rows, []string{pairs[i], pairs[i+1]})
		}
	}
	return rows
}

// note tells a person something, on stderr.
func (a *app) note(format string, args ...any) {
	// Nothing can be said about a stderr that can't be written to.
	_, _ = fmt.Fprintln(a.Stderr, printable(fmt.Sprintf(format, args...), true))
}

// printable takes out of outside text what a terminal would obey: control
// characters and what turns the direction of text.
func printable(text string, lines bool) string {
	return strings.Map(func(r rune) rune {
		switch {
		case (r == '\n' || r == '\t') && lines:
			return r
		case r == '\n' || r == '\t':
			return ' '
		case unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r):
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// when shows a time as people ask for it: how long until or since.
func when(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	d := t.Sub(now)
	if d < 0 {
		return short(-d) + " ago"
	}
	return "in " + short(d)
}

// moment shows a time and how far it is.
func moment(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339) + " (" + when(t, now) + ")"
}

// short shows a duration with at most two units.
func short(d time.Duration) string {
	const day = 24 * time.Hour
	switch d = d.Round(time.Second); {
	case d >= 2*day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	}
	return d.String()
}

// sizeOf shows a size.
func sizeOf(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, suffix := float64(n)/unit, 0
	for value >= unit && suffix < len("KMGTPE")-1 {
		value /= unit
		suffix++
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGTPE"[suffix])
}

// labels shows labels in a stable order.
func labels(m map[string]string) string {
	var parts []string
	for _, key := range sortedKeys(m) {
		parts = append(parts, key+"="+m[key])
	}
	return strings.Join(parts, " ")
}

// writeAll writes text and gives the error that matters.
func writeAll(w io.Writer, text string) error {
	_, err := io.WriteString(w, text)
	return err
}
