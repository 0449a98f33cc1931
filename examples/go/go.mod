module moert.dev/go

go 1.18
