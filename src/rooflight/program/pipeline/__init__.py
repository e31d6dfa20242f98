"""Pipeline stages: schedules as tables that one program runs."""
