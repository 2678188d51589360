-- Room that a claim takes up: a row that does not grow stays where it is. Without it each page of
-- new tasks is split when they are claimed. (PostgreSQL has fillfactor for this.) It is enough for
-- holders of some 50 characters. In two steps: a column that is added to a table with rows takes no
-- room where it has the value that those rows got, which therefore is NULL.
ALTER TABLE job_delay_task ADD COLUMN room varbinary(64);
ALTER TABLE job_delay_task ALTER COLUMN room
    SET DEFAULT '                                                                ';
