package rows

import "time"

// Pause is Operator.Pause, or, if it is not to be paused, Operator.Resume.
func (o Operator) Pause(consumer string, paused bool) error {
	c := o.rows.Consumers[consumer]
	switch {
	case c == nil:
		return errNoConsumer
	case paused == !c.Paused.IsZero():
		return nil
	}
	if c.Paused = (time.Time{}); paused {
		c.Paused = o.rows.At
	}
	o.rows.saveConsumer(c)
	o.rows.Handovers++
	return nil
}

func (r *Rows) paused(consumer string) bool {
	c := r.Consumers[consumer]
	return c != nil && !c.Paused.IsZero()
}
