package operate

import "fmt"

// InvalidError is in an error about something that was given to an Operator and that cannot be: an id or a place that the backend
// gives to none of its rows, a position beyond the last message. Its text says what is wrong. A repetition fails, too.
type InvalidError struct{ text string }

func (e *InvalidError) Error() string { return e.text }

// Invalid returns an InvalidError whose text is made as by fmt.Sprintf.
func Invalid(format string, args ...any) error { return &InvalidError{fmt.Sprintf(format, args...)} }
